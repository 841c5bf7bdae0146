// Parses the command line and calls the subcommand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "cli/text.hpp"

namespace clew::cli {

namespace {

/// What the parser found wrong, in one line that says where to look.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* asked = &app;  // the subcommand that it is about
  std::string name = "clew";
  while (!asked->get_subcommands().empty()) {
    asked = asked->get_subcommands().front();
    name += " " + asked->get_name();
  }
  const std::vector<std::string> left = app.remaining(true);
  const bool word = !left.empty() && !left.front().starts_with('-');
  std::string what = error.what();
  std::string hint = "see " + name + " --help";
  if (asked->get_require_subcommand_min() != 0) {
    std::string names;
    for (const CLI::App* command : asked->get_subcommands([](const CLI::App*) { return true; }))
      names += (names.empty() ? "" : ", ") + command->get_name();
    if (word) what = "no subcommand of " + name + " is called '" + left.front() + "'";
    if (left.empty()) what = name + " needs a subcommand";
    if (!left.empty() && !word) what = "no option of " + name + " is called '" + left.front() + "'";
    hint = "there are " + names + "; " + hint;
  } else if (const std::string prefix = "Could not convert: "; what.starts_with(prefix)) {
    what = what.substr(prefix.size()) + " is not a number in its range";  // no other values are converted
  } else if (word && asked->get_name() == "record") {
    what = "'" + left.front() + "' is not an option";
    hint = "put -- before the command: clew record -- " + left.front();
  }
  return what + "; " + hint;
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app{"clew: follow every stack to its root", "clew"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "clew 0.1.0");
  int status = 0;

  // What follows `--` is the command's, word by word: not even an option of ours in it is looked at.
  RecordOptions record_options;
  int own_count = argc;
  if (argc > 1 && std::string_view(argv[1]) == "record") {
    own_count = static_cast<int>(
        std::find_if(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; }) -
        argv);
  }
  for (int i = own_count + 1; i < argc; ++i) record_options.command.emplace_back(argv[i]);
  CLI::App* record_command = app.add_subcommand("record", "Record a command (after --) or running processes");
  record_command->add_option("-o,--output", record_options.output, "the recording")->capture_default_str();
  record_command->add_option("-F,--frequency", record_options.frequency_hz, "samples a second and CPU, Hz")
      ->capture_default_str();
  record_command
      ->add_option("-p,--pid", record_options.pids,
                   "a running process, its threads and later children; repeatable")
      ->take_all();
  record_command->add_flag("-a,--all", record_options.all,
                           "every process of the machine (needs CAP_PERFMON)");
  record_command->add_option("--collector", record_options.collector, "auto, bpf, perf or inprocess")
      ->capture_default_str();
  record_command->add_option(
      "--duration", record_options.duration_s,
      "seconds to record; a command runs on afterwards (default: until it ends, or Ctrl-C)");
  record_command->add_flag("!--no-stop", record_options.stop_for_other_stacks,
                           "never stop a thread to read its other stacks (signal stacks, coroutines)");
  record_command
      ->add_option("--off-cpu", record_options.off_cpu_ms,
                   "also the time that threads are blocked, in waits of at least so many ms (1); as root")
      ->expected(0, 1)
      ->default_str("1")
      ->type_name("MS");
  record_command->footer("clew record [OPTIONS] -- COMMAND [ARGUMENT...]");
  record_command->callback([&] { status = record(record_options); });

  ReportOptions report_options;
  CLI::App* report_command = app.add_subcommand("report", "Show a recording");
  report_command->add_option(
      "--format", report_options.format,
      "summary, summary-json, folded, pprof, speedscope or otlp (default: summary and table)");
  report_command->add_option("--view", report_options.view, "logical or physical")->capture_default_str();
  report_command->add_flag("--off-cpu", report_options.off_cpu,
                           "the time that threads were blocked (record --off-cpu) instead of CPU time");
  report_command->add_option("-o,--output", report_options.output,
                             "where to write (default: standard output)");
  report_command->add_option("FILE", report_options.file, "the recording")->capture_default_str();
  report_command->callback([&] { status = report(report_options); });

  StackOptions stack_options;
  CLI::App* stack_command =
      app.add_subcommand("stack", "Print the stack of every thread of a process or core file");
  stack_command->add_flag("--json", stack_options.json, "Print JSON");
  stack_command->add_option("target", stack_options.target, "A PID or a core file")
      ->required()
      ->type_name("PID|CORE");
  stack_command->add_option("executable", stack_options.executable, "The program of the core file")
      ->type_name("EXE");
  stack_command->callback([&] { status = stack(stack_options); });

  TableOptions table_options;
  CLI::App* table_command = app.add_subcommand("table", "Show the compact unwind table of an ELF file");
  table_command->require_subcommand(1);
  CLI::App* table_stats = table_command->add_subcommand("stats", "Sizes, counts and the time to build");
  table_stats->add_flag("--json", table_options.json, "Print JSON");
  CLI::App* table_dump = table_command->add_subcommand("dump", "One line a row: pc cfa fp ra");
  for (CLI::App* command : {table_stats, table_dump})
    command->add_option("file", table_options.file, "An ELF file")->required()->type_name("ELF");
  table_command->callback([&] {
    table_options.dump = table_dump->parsed();
    status = table(table_options);
  });

  SframeOptions sframe_options;
  CLI::App* sframe_command = app.add_subcommand("sframe", "Read the SFrame section of an ELF file");
  sframe_command->require_subcommand(1);
  CLI::App* sframe_dump =
      sframe_command->add_subcommand("dump", "Its functions and rows, as readelf has them");
  CLI::App* sframe_verify =
      sframe_command->add_subcommand("verify", "Check it: one line a defect, exit status 1 if there is one");
  for (CLI::App* command : {sframe_dump, sframe_verify}) {
    command->add_flag("--json", sframe_options.json, "Print JSON");
    command
        ->add_option("--raw", sframe_options.raw,
                     "FILE is the bare bytes of a section, as if loaded there; :be for big-endian")
        ->type_name("ARCH:ADDRESS[:be]");
    command->add_option("file", sframe_options.file, "An ELF file")->required()->type_name("FILE");
  }
  sframe_command->callback([&] {
    sframe_options.verify = sframe_verify->parsed();
    status = sframe(sframe_options);
  });

  DoctorOptions doctor_options;
  CLI::App* doctor_command =
      app.add_subcommand("doctor", "Say what works here, and what to do about the rest");
  doctor_command->add_flag("--json", doctor_options.json, "Print JSON");
  doctor_command->callback([&] { status = doctor(doctor_options); });

  try {
    app.parse(own_count, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    fail(explain(app, error));
    return record_options.command.empty() ? 2 : 125;
  }
  return status;
}

}  // namespace clew::cli
