#include "collect/bpf/functions.hpp"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <memory>
#include <string_view>

#include "process/process.hpp"

namespace clew::collect::bpf {

namespace {

// The kernel's own limits lie below: 256 functions, a line record an instruction, a million of these.
constexpr uint32_t kMostFunctions = 4096, kMostLines = 1u << 20;
constexpr uint64_t kLongestFunction = uint64_t{1} << 26;

/// What the kernel says of a program (linux/bpf.h, struct bpf_prog_info).
struct Told {
  bpf_prog_info info = {};
  std::vector<uint64_t> starts;
  std::vector<uint32_t> lengths;
  std::vector<bpf_func_info> functions;
  std::vector<uint64_t> line_addresses;
  std::vector<bpf_line_info> lines;
};

uint64_t pointer(auto& list) { return reinterpret_cast<uint64_t>(list.data()); }

bool ask_kernel(int fd, Told& told) {
  uint32_t size = sizeof told.info;
  if (bpf_obj_get_info_by_fd(fd, &told.info, &size) != 0) return false;
  const bpf_prog_info counts = told.info;
  if (counts.nr_jited_ksyms > kMostFunctions || counts.nr_func_info > kMostFunctions ||
      counts.nr_line_info > kMostLines || counts.nr_jited_line_info > kMostLines)
    return false;
  told.starts.resize(counts.nr_jited_ksyms);
  told.lengths.resize(counts.nr_jited_func_lens > kMostFunctions ? 0 : counts.nr_jited_func_lens);
  told.functions.resize(counts.nr_func_info);
  told.line_addresses.resize(counts.nr_jited_line_info);
  told.lines.resize(counts.nr_line_info);
  told.info = {};
  told.info.nr_jited_ksyms = static_cast<uint32_t>(told.starts.size());
  told.info.jited_ksyms = pointer(told.starts);
  told.info.nr_jited_func_lens = static_cast<uint32_t>(told.lengths.size());
  told.info.jited_func_lens = pointer(told.lengths);
  told.info.nr_func_info = static_cast<uint32_t>(told.functions.size());
  told.info.func_info_rec_size = sizeof(bpf_func_info);
  told.info.func_info = pointer(told.functions);
  told.info.nr_jited_line_info = static_cast<uint32_t>(told.line_addresses.size());
  told.info.jited_line_info_rec_size = sizeof(uint64_t);
  told.info.jited_line_info = pointer(told.line_addresses);
  told.info.nr_line_info = static_cast<uint32_t>(told.lines.size());
  told.info.line_info_rec_size = sizeof(bpf_line_info);
  told.info.line_info = pointer(told.lines);
  size = sizeof told.info;
  if (bpf_obj_get_info_by_fd(fd, &told.info, &size) != 0) return false;
  // Where the kernel does not show addresses they are 0.
  return !told.starts.empty() && told.starts[0] != 0 && told.lengths.size() == told.starts.size();
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

}  // namespace

void Functions::load_all() {
  uint32_t id = 0;
  while (bpf_prog_get_next_id(id, &id) == 0)
    if (!known_.contains(id)) ask(id, 0);
}

void Functions::loaded(uint32_t id, uint64_t time_ns) {
  if (!known_.contains(id)) ask(id, time_ns);
}

void Functions::unloaded(uint32_t id, uint64_t time_ns) {
  known_.erase(id);
  for (Function& function : functions_)
    if (function.id == id) function.until_ns = std::min(function.until_ns, time_ns);
}

void Functions::ask(uint32_t id, uint64_t time_ns) {
  const process::UniqueFd fd(bpf_prog_get_fd_by_id(id));
  Told told;
  if (fd.get() < 0 || !ask_kernel(fd.get(), told)) return;
  known_.insert(id);
  // Without BTF a function has no name but kallsyms'.
  if (told.info.btf_id == 0 || told.functions.size() != told.starts.size()) return;
  const std::unique_ptr<btf, decltype(&btf__free)> types(btf__load_from_kernel_by_id(told.info.btf_id),
                                                         btf__free);
  if (!types) return;
  std::string program;
  for (size_t i = 0; i < told.starts.size(); ++i) {
    const btf_type* type = btf__type_by_id(types.get(), told.functions[i].type_id);
    if (type == nullptr || told.lengths[i] > kLongestFunction) continue;
    Function function;
    function.start = told.starts[i];
    function.end = function.start + told.lengths[i];
    function.name = text_of(btf__name_by_offset(types.get(), type->name_off));
    function.program = program;
    if (i == 0) program = function.name;
    function.tag = hex(told.info.tag, sizeof told.info.tag);
    function.id = id;
    function.from_ns = time_ns;
    for (size_t k = 0; k < std::min(told.lines.size(), told.line_addresses.size()); ++k) {
      if (told.line_addresses[k] < function.start || told.line_addresses[k] >= function.end) continue;
      function.lines.push_back(
          {.address = told.line_addresses[k],
           .file = text_of(btf__name_by_offset(types.get(), told.lines[k].file_name_off)),
           .line = BPF_LINE_INFO_LINE_NUM(told.lines[k].line_col)});
    }
    std::ranges::stable_sort(function.lines, {}, &Function::Line::address);
    functions_.push_back(std::move(function));
    by_start_.emplace(functions_.back().start, &functions_.back());
  }
}

const Function* Functions::find(uint64_t address, uint64_t time_ns) const {
  // Of those that began last at or below the address; one that was there before may have been longer.
  for (auto next = by_start_.upper_bound(address); next != by_start_.begin();) {
    const Function& function = *(--next)->second;
    if (address - function.start > kLongestFunction) break;
    if (time_ns < function.from_ns || time_ns >= function.until_ns) continue;
    return address < function.end ? &function : nullptr;
  }
  return nullptr;
}

}  // namespace clew::collect::bpf
