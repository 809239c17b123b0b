"""What coordinator and participants agree on besides the messages of a protocol: routes, signed requests, the bodies of control."""
