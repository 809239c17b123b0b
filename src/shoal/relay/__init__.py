"""The oblivious relay, for a third party to run: it knows from where packets come and not what is in them; the coordinator, the reverse."""
