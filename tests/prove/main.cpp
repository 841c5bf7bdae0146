// clew-prove [--json] [--sample N] [--threads] [--faults] [--peer libunwind|libdw] -- CMD ARG...
//
// The command's output goes where it went; the report follows it: for people on stderr, JSON as one line on
// stdout. Exit status: 0, 1 where a chain was wrong, 2 where the command could not be run.
#include <fmt/format.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "cli/text.hpp"
#include "prove/peer.hpp"
#include "prove/prover.hpp"

namespace clew::prove {
namespace {

uint64_t sum(const std::map<std::string, uint64_t>& counts) {
  uint64_t total = 0;
  for (const auto& [name, count] : counts) total += count;
  return total;
}

struct Row {
  const Place* place;
  const Finding* finding;
};

/// Findings of one kind (wrong, or ended early), a function's together, those with most chains first.
std::vector<Row> rows_of(const Report& report, bool wrong) {
  static const Place kNowhere;
  std::vector<Row> rows;
  std::map<std::pair<std::string, std::string>, uint64_t> by_function;
  for (const auto& [key, finding] : report.clew.findings) {
    if ((finding.reason == kWrong) != wrong) continue;
    auto place = report.places.find(key.first);
    rows.push_back({place == report.places.end() ? &kNowhere : &place->second, &finding});
    by_function[{rows.back().place->module, rows.back().place->function}] += finding.count;
  }
  std::ranges::stable_sort(rows, [&](const Row& a, const Row& b) {
    std::pair<std::string, std::string> in_a{a.place->module, a.place->function};
    std::pair<std::string, std::string> in_b{b.place->module, b.place->function};
    if (in_a == in_b) return a.finding->count > b.finding->count;
    uint64_t count_a = by_function[in_a], count_b = by_function[in_b];
    return count_a != count_b ? count_a > count_b : in_a < in_b;
  });
  return rows;
}

void print_rows(const std::vector<Row>& rows) {
  const Place* before = nullptr;
  for (const Row& row : rows) {
    const Place& place = *row.place;
    if (!before || before->module != place.module || before->function != place.function)
      fmt::print(stderr, "\n{} in {}\n", place.function.empty() ? "??" : cli::printable(place.function),
                 place.module.empty() ? "anonymous memory" : cli::printable(place.module));
    before = &place;
    fmt::print(stderr, "  0x{:x}: {} {}, frame {}: expected 0x{:x}, found 0x{:x}\n", place.address,
               row.finding->count, row.finding->reason, row.finding->frame, row.finding->expected,
               row.finding->found);
    for (size_t at = 0; at < place.around.size();) {
      size_t end = place.around.find('\n', at);
      fmt::print(stderr, "    {}\n", place.around.substr(at, end - at));
      at = end + 1;
    }
  }
}

void print_tally(const std::string& name, const Tally& tally) {
  uint64_t ended = sum(tally.ended), all = tally.right + tally.wrong + ended;
  fmt::print(stderr, "{}: {} chains, {} right, {} wrong, {} ended early", name, all, tally.right, tally.wrong,
             ended);
  const char* between = " (";
  for (const auto& [reason, count] : tally.ended) {
    fmt::print(stderr, "{}{} {}", between, reason, count);
    between = ", ";
  }
  fmt::print(stderr, "{}\n", tally.ended.empty() ? "" : ")");
}

void print_faults(const Report& report) {
  const FaultTally& faults = report.faults;
  uint64_t ended = sum(faults.ended),
           all = faults.same + ended + faults.undetectable + faults.table + faults.wrong;
  if (all == 0) return;
  fmt::print(stderr,
             "faults: {}, of which {} changed nothing, {} ended the walk, {} undetectable, {} behind no call "
             "by a table's "
             "rule, {} wrong\n",
             all, faults.same, ended, faults.undetectable, faults.table, faults.wrong);
  for (const auto& [reason, count] : faults.ended) fmt::print(stderr, "  {} {}\n", reason, count);
  for (const auto& [pc, what] : faults.wrong_at) {
    auto place = report.places.find(pc);
    if (place == report.places.end()) continue;
    fmt::print(stderr, "  wrong at 0x{:x} in {} of {}: {}\n", place->second.address,
               cli::printable(place->second.function), cli::printable(place->second.module), what);
  }
}

void print_text(const Report& report) {
  if (WIFSIGNALED(report.status))
    fmt::print(stderr, "the command was killed by signal {}\n", WTERMSIG(report.status));
  fmt::print(stderr, "{} instructions at {} addresses, {:.0f} a second\n", report.instructions,
             report.addresses, static_cast<double>(report.instructions) / std::max(report.seconds, 1e-9));
  print_tally("clew", report.clew);
  for (const auto& [name, tally] : report.peers) print_tally(name, tally);
  print_faults(report);
  print_rows(rows_of(report, true));
  print_rows(rows_of(report, false));
  if (report.clew.unlisted > 0)
    fmt::print(stderr, "\n{} more chains, at places beyond the first {}\n", report.clew.unlisted,
               Tally::kMaxFindings);
}

std::string counts_json(const std::map<std::string, uint64_t>& counts) {
  std::string json;
  for (const auto& [reason, count] : counts)
    json += fmt::format("{}{}:{}", json.empty() ? "" : ",", cli::json_string(reason), count);
  return json;
}

std::string as_json(const Report& report) {
  std::string json =
      fmt::format(R"({{"instructions":{},"addresses":{},"right":{},"wrong":{},"undetectable":{},"ended":{{)",
                  report.instructions, report.addresses, report.clew.right, report.clew.wrong,
                  report.faults.undetectable);
  json += counts_json(report.clew.ended);
  json += fmt::format(R"(}},"faults":{{"same":{},"table":{},"wrong":{},"ended":{{{}}}}},"wrong_functions":[)",
                      report.faults.same, report.faults.table, report.faults.wrong,
                      counts_json(report.faults.ended));
  const char* comma = "";
  for (const Row& row : rows_of(report, true)) {
    json += fmt::format(R"({}{{"module":{},"function":{},"pc":"0x{:x}","count":{}}})", comma,
                        cli::json_string(row.place->module), cli::json_string(row.place->function),
                        row.place->address, row.finding->count);
    comma = ",";
  }
  json += R"(],"peers":{)";
  comma = "";
  for (const auto& [name, tally] : report.peers) {
    json += fmt::format(R"({}"{}":{{"right":{},"wrong":{},"ended":{}}})", comma, name, tally.right,
                        tally.wrong, sum(tally.ended));
    comma = ",";
  }
  return json + "}}\n";
}

int run(int argc, char** argv) {
  Options options;
  bool json = false;
  CLI::App app{"Unwinds a command at each instruction that it executes and compares with a shadow stack."};
  app.add_flag("--json", json, "the report as JSON, one line on standard output");
  app.add_option("--sample", options.sample, "unwind at one of N instructions, chosen at random")
      ->check(CLI::PositiveNumber);
  app.add_flag("--threads", options.threads, "follow all threads, not only the first");
  app.add_flag("--faults", options.faults, "at each right chain, break something and judge the walk again");
  app.add_option("--peer", options.peers, "judge libunwind or libdw at the same instructions")
      ->check([](const std::string& name) {
        return has_peer(name) ? "" : name + " is not built in: libunwind, libdw need their Debian packages";
      });
  app.add_option("command", options.command, "CMD ARG...")->required();
  app.positionals_at_end();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "clew-prove: {}; see clew-prove --help\n", cli::printable(error.what()));
    return 2;
  }
  auto report = prove(options);
  if (!report) {
    fmt::print(stderr, "clew-prove: {}\n", cli::printable(report.error()));
    return 2;
  }
  if (!json) {
    print_text(*report);
  } else {
    std::string text = as_json(*report);
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      fmt::print(stderr, "clew-prove: cannot write the report to standard output\n");
      return 2;
    }
  }
  return report->clew.wrong > 0 || report->faults.wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace clew::prove

int main(int argc, char** argv) { return clew::prove::run(argc, argv); }
