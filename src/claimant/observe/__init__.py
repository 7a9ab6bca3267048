"""Floor 3: where events go. An observer is called with each event and never breaks a job."""
