"""The study file, the manifest, the plan and the label."""
