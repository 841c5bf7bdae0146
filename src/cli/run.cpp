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
  int status = 0;

  ReportOptions report_options;
  CLI::App* report_command = app.add_subcommand("report", "Show a recording");
  report_command->add_option(
      "--format", report_options.format,
      "summary, summary-json, folded, pprof, speedscope or otlp (default: summary and table)");
  report_command->add_option("--view", report_options.view, "logical or physical")->capture_default_str();
  report_command->add_option("-o,--output", report_options.output,
                             "where to write (default: standard output)");
  report_command->add_option("FILE", report_options.file, "the recording")->capture_default_str();
  report_command->callback([&] { status = report(report_options); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "clew: %s; see clew --help\n", error.what());
    return 2;
  }
  return status;
}

}  // namespace clew::cli
