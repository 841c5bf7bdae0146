#include "cli/cli.hpp"

int main(int argc, char** argv) { return clew::cli::run(argc, argv); }
