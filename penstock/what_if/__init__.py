"""What a demand would come to under a policy: served and refused, how far, how soon, at what cost."""
