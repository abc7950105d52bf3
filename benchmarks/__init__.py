"""End-to-end workloads, runners for peers, and the results they gave."""
