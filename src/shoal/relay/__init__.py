"""The OHTTP relay: it sees who sends packets but not their content.

The coordinator sees the content but not who sends. Another party than the coordinator's operator
must run the relay.
"""
