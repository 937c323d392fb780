"""What the server does, whoever asks and however they ask."""
