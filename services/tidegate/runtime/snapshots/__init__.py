"""What a backup copies of a service: its files as of one moment, read on one machine or streamed from a pod."""
