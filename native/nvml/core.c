int nvml_unsupported(void);
int nvml_unsupported(void) { return 3; }
