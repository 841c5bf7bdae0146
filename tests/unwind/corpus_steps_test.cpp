// Single unwind steps that other projects assert (corpus, rule-facts/steps.json): registers and memory in,
// the caller's registers out. The core is compiled here over the memory of the case, as the BPF object and
// the unwinders do over theirs.
#include <gtest/gtest.h>

#include <cstring>

#include "analysis/analysis.hpp"
#include "corpus.hpp"
#include "elf/image.hpp"
#include "table/table.hpp"

namespace clew::test {

struct Case {
  nlohmann::json memory;
  std::shared_ptr<const table::Table> table;
  std::unique_ptr<elf::Image> image;
  uint64_t bias = 0;
  uint64_t caller = 0;  // where the step has to arrive
};

namespace {

bool read_word(Case* at, uint64_t address, uint64_t* value) {
  const nlohmann::json& memory = at->memory;
  if (memory["kind"] == "words") {
    uint64_t start = number(memory["start"]);
    if (address < start || (address - start) / 8 >= memory["words"].size() || address % 8 != 0) return false;
    *value = number(memory["words"][(address - start) / 8]);
    return true;
  }
  uint64_t below = number(memory["below"]);
  if (address < below) return false;
  *value = address - below;
  for (const auto& [place, word] : memory["at"].items())
    if (std::stoull(place, nullptr, 16) == address) *value = number(word);
  return true;
}

uint64_t analyse(Case* at, uint64_t pc) {
  std::array<std::byte, 256> code;
  if (at->image->read(pc - at->bias - 64, code) != code.size()) return 0;
  return analysis::rule_at(code, 64);
}

}  // namespace
}  // namespace clew::test

struct clew_code;
namespace clew::test {
namespace {
uint32_t find_code(Case* at, clew_code* code);
}  // namespace
}  // namespace clew::test

#define CLEW_CONTEXT clew::test::Case*
#define CLEW_READ_U64(context, address, out) clew::test::read_word(context, address, out)
#define CLEW_FIND(context, pc, code) clew::test::find_code(context, code)
#define CLEW_ANALYSE(context, pc) clew::test::analyse(context, pc)
#define CLEW_VOUCH(context, pc) ((pc) == (context)->caller)
#include "core/walk.h"

namespace clew::test {
namespace {

uint32_t find_code(Case* at, clew_code* code) {
  code->table = at->table->header();
  code->bias = at->bias;
  return CLEW_CONTINUE;
}

clew_state start_of(const nlohmann::json& walk, const nlohmann::json& step) {
  clew_state state{};
  state.value[CLEW_RSP] = number(walk["start"]["sp"]);
  state.value[CLEW_RBP] = number(walk["start"]["fp"]);
  state.value[CLEW_RIP] = number(step["pc"]);
  state.known = 1u << CLEW_RSP | 1u << CLEW_RBP | 1u << CLEW_RIP;
  return state;
}

void expect_caller(const clew_state& state, const nlohmann::json& step) {
  EXPECT_EQ(state.value[CLEW_RIP], number(step["expect"]["caller_pc"]));
  EXPECT_EQ(state.value[CLEW_RSP], number(step["expect"]["sp"]));
  EXPECT_EQ(state.value[CLEW_RBP], number(step["expect"]["fp"]));
  EXPECT_TRUE(clew_known(&state, CLEW_RBP));
}

const nlohmann::json& case_named(const nlohmann::json& all, const std::string& id) {
  for (const auto& one : all["cases"])
    if (one["id"] == id) return one;
  throw std::runtime_error("no case " + id);
}

class CorpusStep : public testing::TestWithParam<std::string> {};

TEST_P(CorpusStep, FindsTheCaller) {
  std::string root = corpus("rule-facts");
  CLEW_NEED_CORPUS(root);
  auto all = read_json(root + "/steps.json");
  const auto& wanted = case_named(all, GetParam());
  if (wanted["arch"] == "arm64") GTEST_SKIP() << "AArch64 unwinding is not built yet";
  Case subject;
  subject.memory = wanted["memory"];
  subject.bias = number(wanted["load_bias"]);
  auto image = elf::Image::open(root + "/" + wanted["binary"].get<std::string>());
  ASSERT_TRUE(image) << image.error();
  subject.image = std::make_unique<elf::Image>(std::move(*image));
  auto table = table::compile(*subject.image);
  ASSERT_TRUE(table) << table.error();
  subject.table = *table;

  for (const auto& walk : wanted["walks"]) {
    ASSERT_EQ(walk["steps"].size(), 1u);
    const auto& step = walk["steps"][0];
    SCOPED_TRACE(walk.dump());
    subject.caller = number(step["expect"]["caller_pc"]);
    clew_frame frame;
    clew_walk one{};
    one.context = &subject;
    one.state = start_of(walk, step);
    one.frames = &frame;
    one.capacity = 1;  // the walk ends behind the first step, and the state is the caller's
    one.full = true;
    clew_walk_run(&one);
    ASSERT_EQ(one.end, CLEW_END_DEPTH_LIMIT) << clew_end_name(one.end);
    EXPECT_EQ(frame.pc, number(step["pc"]));
    expect_caller(one.state, step);
  }
}

INSTANTIATE_TEST_SUITE_P(Corpus, CorpusStep,
                         testing::Values("plt-cfa-expression", "vdso-without-eh-frame-hdr",
                                         "leaf-without-fde"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// The case without a binary: its row, written as a table would have it, is given to the step.
TEST(CorpusSteps, SavedRegisterBelowTheStackPointerIsNotRead) {
  std::string root = corpus("rule-facts");
  CLEW_NEED_CORPUS(root);
  auto all = read_json(root + "/steps.json");
  const auto& wanted = case_named(all, "saved-register-below-sp");
  Case subject;
  subject.memory = wanted["memory"];
  const auto& walk = wanted["walks"][0];
  clew_state state = start_of(walk, walk["steps"][0]);
  ASSERT_EQ(wanted["row"]["cfa"], "rsp+8");
  ASSERT_EQ(wanted["row"]["rules"]["rbp"], "CFA-16");
  clew_step step{};
  step.full = true;
  clew_rule rule = clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 2, 0, false);
  ASSERT_EQ(clew_step_by_rule(&subject, nullptr, rule, &state, &step), static_cast<uint32_t>(CLEW_CONTINUE));
  expect_caller(state, walk["steps"][0]);
}

}  // namespace
}  // namespace clew::test
