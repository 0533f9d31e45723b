"""One process per cluster: decides where pods with shares go. It adds what kube-scheduler cannot know: devices."""
