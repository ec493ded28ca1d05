"""What a run is made of: its parser, configuration files, folder and results."""
