// Parses the command line and calls the subcommand.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "cli/cli.hpp"

namespace clew::cli {

int run(int argc, char** argv) {
  CLI::App app{"clew: follow every stack to its root", "clew"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "clew 0.1.0");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "clew: %s; see clew --help\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace clew::cli
