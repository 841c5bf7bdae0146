// The fuzz target's body, for the tests that feed it files of their own making.
#include "../fuzz/elf_fuzz.cpp"  // NOLINT(bugprone-suspicious-include)
