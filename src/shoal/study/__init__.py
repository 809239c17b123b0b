"""The study file, the manifest, the plan and the label: what is asked, of whom, at which price."""
