"""What coordinator, relay and participants agree on besides the messages of a protocol, and how both of the former listen."""
