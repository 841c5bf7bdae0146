// The summary for programs: one JSON object.
//
//   samples, complete, lost, guessed (frames), frames, bytes, duration_ns, cpu_used_ns, cpu_sampled_ns,
//   period_ns, ignored: numbers; collector, command: strings; truncated: bool; notes: strings;
//   end_reasons: {clew_end_name: samples}, those that occurred; overhead: {clew_cpu_s, bpf_cpu_s}: CPU
//   seconds; off_cpu: {waits, complete, blocked_ns}.
#include <fmt/format.h>

#include "profile/counts.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"

namespace clew::profile {

std::string summary_json(const Profile& profile) {
  const Counts counts = count(profile, profile.samples);
  const Counts waits = count(profile, profile.waits);
  const Totals& totals = profile.totals;
  std::string ends, notes;
  for (uint32_t end = 0; end < counts.by_end.size(); ++end)
    if (counts.by_end[end] > 0)
      ends += fmt::format("{}{}: {}", ends.empty() ? "" : ", ", json_string(clew_end_name(end)),
                          counts.by_end[end]);
  for (const std::string& note : totals.notes) notes += (notes.empty() ? "" : ", ") + json_string(note);
  return fmt::format(
      R"({{"samples": {}, "complete": {}, "lost": {}, "end_reasons": {{{}}}, "guessed": {}, "frames": {}, )"
      R"("bytes": {}, "collector": {}, "command": {}, "duration_ns": {}, "period_ns": {}, "cpu_used_ns": {}, )"
      R"("cpu_sampled_ns": {}, "overhead": {{"clew_cpu_s": {:.6f}, "bpf_cpu_s": {:.6f}}}, )"
      R"("off_cpu": {{"waits": {}, "complete": {}, "blocked_ns": {}}}, "truncated": {}, )"
      R"("ignored": {}, "notes": [{}]}})"
      "\n",
      counts.samples, counts.complete, totals.lost, ends, counts.guessed, counts.frames, profile.file_bytes,
      json_string(totals.collector), json_string(totals.command), totals.duration_ns, profile.period_ns,
      totals.cpu_used_ns, counts.weight_ns, static_cast<double>(totals.clew_cpu_ns) / 1e9,
      static_cast<double>(totals.bpf_cpu_ns) / 1e9, waits.samples, waits.complete, waits.weight_ns,
      profile.truncated, profile.ignored, notes);
}

}  // namespace clew::profile
