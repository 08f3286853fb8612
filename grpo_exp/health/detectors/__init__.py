"""One detector a file: its name is the file's, its thresholds stand under that name in conf/health/standard.yaml."""
