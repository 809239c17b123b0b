"""SDQ: databases answer counts through a secure sum that carries exactly the noise needed, and trees are learned from them."""
