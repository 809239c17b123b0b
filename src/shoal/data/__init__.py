"""Tables, schemas and encoded columns."""
