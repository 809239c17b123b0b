"""Supply chain of a deployment: pinned packages with hashes, and a bill of materials."""
