// Right, wrong, ended early.
#include "prove/judge.hpp"

#include <algorithm>

namespace clew::prove {
namespace {

uint64_t mixed(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15 + (hash >> 29); }

uint64_t hash_of(std::span<const uint64_t> addresses) {
  uint64_t hash = 1;
  for (uint64_t address : addresses) hash = mixed(hash, address);
  return hash;
}

/// Of a chain whose leaf stands at `pc`, with these callers, outermost first.
uint64_t hash_of(uint64_t pc, std::span<const Caller> callers) {
  uint64_t hash = mixed(1, pc);
  for (size_t i = callers.size(); i-- > 0;) hash = mixed(hash, callers[i].address);
  return hash;
}

}  // namespace

void Tally::note(uint64_t pc, const Finding& finding) {
  auto key = std::pair(pc, finding.reason);
  auto known = findings.find(key);
  if (known == findings.end() && findings.size() >= kMaxFindings) {
    ++unlisted;
    return;
  }
  if (known == findings.end()) known = findings.emplace(std::move(key), finding).first;
  ++known->second.count;
}

void Judge::settle_as_wrong(const Waiting& waiting) {
  ++tally_->wrong;
  tally_->note(waiting.pc, waiting.finding);
}

bool Judge::judge(uint64_t pc, const Chain& chain, std::span<const Caller> callers) {
  size_t whole = callers.size() + 1, found = chain.addresses.size();
  auto truth = [&](size_t i) { return i == 0 ? pc : callers[callers.size() - i].address; };
  size_t same = 0;
  while (same < found && same < whole && chain.addresses[same] == truth(same)) ++same;

  if (same == found && same == whole && chain.at_root) {
    ++tally_->right;
    return true;
  }
  Finding finding{0, chain.reason, same, same < whole ? truth(same) : 0, 0};
  if (same == found && !chain.at_root) {
    ++tally_->ended[chain.reason];
    tally_->note(pc, finding);
    return false;
  }
  finding.reason = kWrong;
  if (same < found) finding.found = chain.addresses[same];
  Waiting waiting{pc, 0, found - same, callers.size() + 1 - same, finding};
  bool may_land = same > 0 && same < found && chain.at_root;
  if (!may_land || waiting_.size() >= kMaxWaiting) {
    settle_as_wrong(waiting);
    return false;
  }
  waiting.rest_hash = hash_of(chain.addresses.subspan(same));
  waiting_.push_back(std::move(waiting));
  return false;
}

void Judge::settle(uint64_t pc, std::span<const Caller> callers, bool all) {
  if (waiting_.empty()) return;
  uint64_t landing = hash_of(pc, callers);
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (!all && callers.size() >= waiting.depth) return false;
    if (waiting.rest == callers.size() + 1 && waiting.rest_hash == landing)
      ++tally_->right;
    else
      settle_as_wrong(waiting);
    return true;
  });
}

void Judge::finish() {
  for (const Waiting& waiting : waiting_) settle_as_wrong(waiting);
  waiting_.clear();
}

}  // namespace clew::prove
