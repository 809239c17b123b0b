"""HTTP between participants, coordinator and relay."""
