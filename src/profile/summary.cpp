// The summary that `clew record` and `clew report` print: text of at most 80 columns.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "profile/counts.hpp"
#include "profile/functions.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"

namespace clew::profile {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kHottest = 5;
constexpr double kMostSampled = 0.9;  // below this share of the CPU time used, the summary says why

// Each at most 51 characters, to fit behind the name and the count.
const char* end_meaning(uint32_t end) {
  switch (end) {
    case CLEW_END_NO_RULE:
      return "in code that nothing describes";
    case CLEW_END_NOT_MAPPED:
      return "at a return address that lies in no mapping";
    case CLEW_END_NOT_EXECUTABLE:
      return "at a return address that is not executable";
    case CLEW_END_UNREADABLE:
      return "stack memory could not be read";
    case CLEW_END_STACK_CUT:
      return "the copied piece of stack was too short";
    case CLEW_END_OTHER_STACK:
      return "at a switch to a stack that was not copied";
    case CLEW_END_NO_PROGRESS:
      return "the caller's frame was not nearer to the root";
    case CLEW_END_DEPTH_LIMIT:
      return "more frames than the limit";
    case CLEW_END_NO_REGISTER:
      return "a rule needed a register that was not known";
    case CLEW_END_BAD_EXPRESSION:
      return "a DWARF expression could not be evaluated";
    case CLEW_END_NOT_A_CALL:
      return "at an unvouched address behind no call";
    case CLEW_END_STACK_CHANGED:
      return "the stack changed while it was read";
    case CLEW_END_NO_USER_STACK:
      return "a kernel thread, or a thread that was exiting";
    default:
      return "the file does not say why";
  }
}

// Cut, not rounded: 99.999 % is not 100 %.
std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  const double cut = static_cast<double>(static_cast<uint64_t>(std::min(share, 1e6) * 100)) / 100;
  return fmt::format("{:.2f} %", cut);
}

double seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// Breaks at spaces; a word longer than a line is cut.
std::string wrapped(const std::string& text, const std::string& indent) {
  std::string result, line;
  const size_t width = kColumns - indent.size();
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = shortened(text.substr(at, space - at), width);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += indent + line + '\n';
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
    at = space + 1;
  }
  if (!line.empty()) result += indent + line + '\n';
  return result;
}

std::string headline(const Profile& profile, const Counts& counts) {
  const Totals& totals = profile.totals;
  std::string line =
      fmt::format("{} {} in {:.1f} s", grouped(counts.samples),
                  profile.off_cpu ? "waits off the CPU" : "samples", seconds(totals.duration_ns));
  if (!totals.collector.empty()) line += fmt::format(" by the {} collector", printable(totals.collector));
  if (!totals.command.empty()) {
    const size_t used = line.size() + 2;
    if (used + 20 < kColumns) line += ": " + shortened(printable(totals.command), kColumns - used);
  }
  return shortened(line, kColumns) + '\n';
}

std::string traces(const Profile& profile, const Counts& counts) {
  std::string text =
      fmt::format("  {:<15}{:>12}  {} of the {} reach the root\n", "complete", grouped(counts.complete),
                  percent(counts.complete, counts.samples), profile.off_cpu ? "waits" : "samples");
  for (uint32_t end = 1; end < counts.by_end.size(); ++end)
    if (counts.by_end[end] > 0)
      text += fmt::format("  {:<15}{:>12}  {}\n", clew_end_name(end), grouped(counts.by_end[end]),
                          end_meaning(end));
  if (counts.guessed > 0)
    text += fmt::format("  {:<15}{:>12}  of {} frames: nothing vouches for them\n", "guessed",
                        grouped(counts.guessed), grouped(counts.frames));
  text += fmt::format("  {:<15}{:>12}  samples\n", "lost", grouped(profile.totals.lost));
  return text;
}

std::string cpu_time(const Profile& profile, const Counts& counts) {
  const Totals& totals = profile.totals;
  if (profile.off_cpu)
    return fmt::format("Blocked: {:.2f} s, the sum over all threads\n", seconds(counts.weight_ns));
  std::string text;
  if (totals.cpu_used_ns > 0) {
    text += fmt::format("CPU time: {:.2f} s used, {:.2f} s of it sampled ({})\n", seconds(totals.cpu_used_ns),
                        seconds(counts.weight_ns), percent(counts.weight_ns, totals.cpu_used_ns));
    if (totals.collector == "perf" &&
        static_cast<double>(counts.weight_ns) < kMostSampled * static_cast<double>(totals.cpu_used_ns))
      text += "  time in the kernel gives no samples at perf_event_paranoid 2\n";
  } else {
    text += fmt::format("CPU time: {:.2f} s sampled\n", seconds(counts.weight_ns));
  }
  if (totals.clew_cpu_ns > 0)
    text += fmt::format("clew used {:.2f} s of CPU time\n", seconds(totals.clew_cpu_ns));
  if (totals.bpf_cpu_ns > 0) text += fmt::format("its BPF programs {:.2f} s\n", seconds(totals.bpf_cpu_ns));
  if (!profile.waits.empty()) {
    const Counts waits = count(profile, profile.waits);
    text +=
        fmt::format("Off the CPU: {} waits, {} complete, {:.2f} s (clew report --off-cpu)\n",
                    grouped(waits.samples), percent(waits.complete, waits.samples), seconds(waits.weight_ns));
  }
  return text;
}

std::string hottest_functions(const Profile& profile) {
  const Hottest hot = hottest(profile);
  std::string text;
  for (size_t i = 0; i < std::min(kHottest, hot.functions.size()) && hot.functions[i].self_ns > 0; ++i)
    text += fmt::format("  {:>9}  {}\n", percent(hot.functions[i].self_ns, hot.all_ns),
                        shortened(hot.functions[i].name, kColumns - 13));
  const char* const title = profile.off_cpu ? "Functions that wait, by the time that they were blocked\n"
                                            : "Hottest functions, by the time in themselves\n";
  return text.empty() ? text : title + text;
}

}  // namespace

std::string summary(const Profile& profile) {
  const Counts counts = count(profile, profile.samples);
  std::string text = headline(profile, counts);
  if (counts.samples == 0)
    text += wrapped(profile.off_cpu
                        ? "No waits: record with --off-cpu as root, and see its least duration."
                        : "No samples: the program slept, or used less CPU time than one sampling period.",
                    "  ");
  else
    text += traces(profile, counts);
  text += cpu_time(profile, counts);
  text += hottest_functions(profile);
  for (const std::string& note : profile.totals.notes) text += wrapped("Note: " + printable(note), "");
  if (profile.truncated) text += "The recorder was killed: what it had not written yet is missing.\n";
  if (profile.ignored > 0)
    text +=
        fmt::format("{} entries of the file make no sense and were left out.\n", grouped(profile.ignored));
  const std::string size =
      counts.samples == 0
          ? fmt::format(": {} bytes", grouped(profile.file_bytes))
          : fmt::format(": {} bytes, {:.1f} a sample", grouped(profile.file_bytes),
                        static_cast<double>(profile.file_bytes) / static_cast<double>(counts.samples));
  return text + shortened(printable(profile.path), kColumns - size.size()) + size + '\n';
}

std::string table(const Profile& profile, size_t rows) {
  const Hottest hot = hottest(profile);
  std::string text = "     self      total  function\n";
  for (size_t i = 0; i < std::min(rows, hot.functions.size()); ++i) {
    const Hot& row = hot.functions[i];
    text += fmt::format("{:>9}  {:>9}  {}\n", percent(row.self_ns, hot.all_ns),
                        percent(row.total_ns, hot.all_ns), shortened(row.name, kColumns - 22));
  }
  return text;
}

}  // namespace clew::profile
