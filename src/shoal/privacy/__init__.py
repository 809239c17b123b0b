"""What a release costs, and who keeps count."""
