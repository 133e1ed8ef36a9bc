"""What mixes tokens other than attention; one file per mixer, each found by itself."""
