// The command line: one file a subcommand. Every function returns the process's exit status.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace clew::cli {

int run(int argc, char** argv);

struct RecordOptions {
  std::string output = "clew.otlp.zst";
  unsigned frequency_hz = 999;
  std::vector<int> pids;
  bool all = false;
  std::string collector = "auto";
  double duration_s = 0;  // 0: until the command ends or Ctrl-C
  bool stop_for_other_stacks = true;
  std::optional<double> off_cpu_ms;  // also waits of at least so long
  std::vector<std::string> command;
};
int record(const RecordOptions& options);

struct ReportOptions {
  std::string format;  // "": summary and table
  std::string view = "logical";
  bool off_cpu = false;
  std::string output;  // "": standard output
  std::string file = "clew.otlp.zst";
};
int report(const ReportOptions& options);

struct StackOptions {
  bool json = false;
  std::string target;      // a PID or a core file
  std::string executable;  // for a core file, where it is not found by itself
};
int stack(const StackOptions& options);

struct TableOptions {
  bool json = false;
  bool dump = false;
  std::string file;
};
int table(const TableOptions& options);

struct SframeOptions {
  bool json = false;
  bool verify = false;  // else: dump
  std::string raw;      // ARCH:ADDRESS[:be]: the file is the bare bytes of a section
  std::string file;
};
int sframe(const SframeOptions& options);

struct DoctorOptions {
  bool json = false;
};
int doctor(const DoctorOptions& options);

}  // namespace clew::cli
