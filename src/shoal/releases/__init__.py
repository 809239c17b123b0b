"""What a holder of PFDS publishes: made-up rows with the privacy statement behind them, signed, and how to check them."""
