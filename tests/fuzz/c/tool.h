/* nvidia-smi as a function: it prints nowhere, writes no file, and a loop of it ends after the first round. */
#ifndef SIMGPU_FUZZ_TOOL_H
#define SIMGPU_FUZZ_TOOL_H

/* Run it with these words, the first being its own name. */
void tool_run(int count, char **words);

#endif
