// clew stack PID|CORE [EXE]: every thread's stack, of a live process or of a core file.
//
// A live process is stopped only while registers are taken and stacks walked: tables are loaded before, names
// are looked up afterwards.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "cli/cli.hpp"
#include "cli/text.hpp"
#include "process/address_space.hpp"
#include "process/core_file.hpp"
#include "process/process.hpp"
#include "process/stop.hpp"
#include "symbolize/symbolize.hpp"
#include "unwind/remote.hpp"

namespace clew::cli {
namespace {

constexpr size_t kMaxFrames = 65'536;

struct Trace {
  pid_t tid = 0;
  std::string name;
  std::vector<clew_frame> frames;
  unwind::WalkResult result;
};

struct Stacks {
  std::string title;  // what the stacks are of
  std::vector<Trace> threads;
  process::AddressSpace space;
  pid_t pid = 0;  // 0: a core
};

/// `thread` is a StoppedThread or a CoreThread.
Trace walk(unwind::Target& target, const auto& thread, std::vector<clew_frame>& buffer) {
  Trace trace;
  trace.tid = thread.tid;
  trace.result = unwind::walk(target, thread.registers, buffer);
  if (thread.just_begun && trace.result.frames == 1) trace.result.end = CLEW_END_ROOT;
  trace.frames.assign(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(trace.result.frames));
  return trace;
}

/// The address that a frame's names belong to: the call, not what follows it.
uint64_t code_address(const clew_frame& frame) {
  return frame.flags & CLEW_FRAME_EXACT_PC ? frame.pc : frame.pc - 1;
}

// ---- Where stacks come from ----

/// The lines of maps that code can lie in. Heap and stacks come and go all the time and change nothing for
/// the walk.
std::string executable_maps(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::string line, kept;
  while (std::getline(maps, line)) {
    size_t rights = line.find(' ');
    if (rights != std::string::npos && line.size() > rights + 3 && line[rights + 3] == 'x')
      kept += line + '\n';
  }
  return kept;
}

Result<Stacks> of_process(pid_t pid) {
  Result<bool> possible = process::can_stop(pid);
  if (!possible) return Error{possible.error()};
  std::string maps = executable_maps(pid);
  process::ModuleCache modules;
  Result<process::AddressSpace> space = process::AddressSpace::of_process(pid, modules);
  std::vector<clew_frame> buffer(kMaxFrames);

  // Without the right to read maps there is none to stop it either, and this error says what to do.
  Result<process::StoppedProcess> stopped = process::StoppedProcess::stop(pid);
  if (!stopped) return Error{stopped.error()};
  if (!space || executable_maps(pid) != maps) {  // it has loaded code since
    space = process::AddressSpace::of_process(pid, modules);
    if (!space) return Error{space.error()};
  }
  Stacks stacks;
  stacks.pid = pid;
  size_t asleep = 0;
  process::StoppedTarget target(pid, *space);
  for (const process::StoppedThread& thread : stopped->threads()) {
    if (thread.stopped) {
      stacks.threads.push_back(walk(target, thread, buffer));
      continue;
    }
    Trace trace;
    trace.tid = thread.tid;
    trace.result.end = CLEW_END_NO_USER_STACK;
    stacks.threads.push_back(trace);
    ++asleep;
  }
  stopped->resume();
  if (asleep > 0)
    note(fmt::format("{} of the threads sleep uninterruptibly in the kernel (state D) and gave no registers",
                     asleep));
  for (Trace& trace : stacks.threads) trace.name = process::thread_name(pid, trace.tid);
  stacks.space = std::move(*space);
  stacks.title =
      fmt::format("process {}, {} thread{}, stopped for {:.3f} ms", pid, stacks.threads.size(),
                  stacks.threads.size() == 1 ? "" : "s", static_cast<double>(stopped->stopped_ns()) / 1e6);
  return stacks;
}

Result<Stacks> of_core(const std::string& path, const std::string& executable) {
  Result<process::CoreFile> core = process::CoreFile::open(path);
  if (!core) return Error{core.error()};
  Result<process::CoreSpace> mapped = process::map_core(*core, executable);
  if (!mapped) return Error{mapped.error()};
  Stacks stacks;
  std::vector<clew_frame> buffer(kMaxFrames);
  process::CoreTarget target(*core, mapped->space);
  for (const process::CoreThread& thread : core->threads()) {
    stacks.threads.push_back(walk(target, thread, buffer));
    stacks.threads.back().name = core->command();
  }
  stacks.space = std::move(mapped->space);
  // A file that no stack runs through is not missed.
  std::unordered_set<std::string> seen{""};
  for (const Trace& trace : stacks.threads) {
    for (const clew_frame& frame : trace.frames) {
      if (const process::Mapping* mapping = stacks.space.find(code_address(frame)))
        seen.insert(mapping->path);
    }
  }
  for (const process::CoreNote& missing : mapped->notes)
    if (seen.contains(missing.path)) note(missing.text);
  int signal = core->threads().front().signal;
  stacks.title = fmt::format("core {} of {}, {} thread{}", path, core->command(), stacks.threads.size(),
                             stacks.threads.size() == 1 ? "" : "s");
  if (signal != 0) stacks.title += fmt::format(", signal {} ({})", signal, strsignal(signal));
  return stacks;
}

// ---- Names ----

/// A name from the image's own symbols: for files that cannot be opened any more and for the vDSO.
symbolize::Lines from_symbols(elf::Image& image, uint64_t address) {
  std::span<const elf::Symbol> symbols = image.symbols();
  auto after = std::ranges::upper_bound(symbols, address, {}, &elf::Symbol::address);
  if (after == symbols.begin()) return {};
  const elf::Symbol& symbol = *std::prev(after);
  if (symbol.size != 0 && address - symbol.address >= symbol.size) return {};
  return {{symbolize::demangle(std::string(symbol.name)), "", 0}};
}

/// The file to take names from, as a path that opens here; the descriptor keeps it open.
symbolize::File file_of(const Stacks& stacks, const process::Mapping& mapping,
                        std::span<const process::MapsEntry> maps, process::UniqueFd& fd) {
  process::Module& module = *mapping.module;
  symbolize::File file;
  file.build_id = module.build_id;
  if (stacks.pid == 0) {
    if (!module.path.starts_with('[')) file.path = module.path;
  } else {
    auto entry = std::ranges::find(maps, mapping.start, &process::MapsEntry::start);
    if (entry == maps.end() || entry->path.empty() || entry->path[0] == '[') return file;
    Result<process::UniqueFd> opened = process::open_mapped_file(stacks.pid, *entry);
    if (!opened) return file;
    fd = std::move(*opened);
    file.path = fmt::format("/proc/self/fd/{}", fd.get());
  }
  if (module.image && !file.path.empty())
    file.debug_path = process::find_debug_file(*module.image, mapping.path, module.root).value_or("");
  return file;
}

/// Names by address in memory, looked up module by module.
std::unordered_map<uint64_t, symbolize::Lines> names_of(const Stacks& stacks) {
  struct Batch {
    const process::Mapping* mapping;
    std::vector<uint64_t> addresses;  // in the file
    std::vector<uint64_t> in_memory;
  };
  std::map<std::pair<process::Module*, uint64_t>, Batch> batches;  // by module and bias
  std::unordered_map<uint64_t, symbolize::Lines> names;
  for (const Trace& trace : stacks.threads) {
    for (const clew_frame& frame : trace.frames) {
      uint64_t address = code_address(frame);
      const process::Mapping* mapping = stacks.space.find(address);
      if (!mapping || !mapping->module || !names.try_emplace(address).second) continue;
      Batch& batch =
          batches.try_emplace({mapping->module.get(), mapping->bias}, Batch{mapping, {}, {}}).first->second;
      batch.addresses.push_back(address - mapping->bias);
      batch.in_memory.push_back(address);
    }
  }
  std::vector<process::MapsEntry> maps;
  if (stacks.pid != 0) {
    if (auto read = process::read_maps(stacks.pid)) maps = std::move(*read);
  }
  symbolize::Symbolizer symbolizer;
  for (auto& [key, batch] : batches) {
    process::UniqueFd fd;
    symbolize::File file = file_of(stacks, *batch.mapping, maps, fd);
    std::vector<symbolize::Lines> lines;
    if (!file.path.empty()) lines = symbolizer.symbolize(file, batch.addresses);
    lines.resize(batch.addresses.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      bool unnamed = lines[i].empty() || lines[i].back().function.empty();
      if (unnamed && batch.mapping->module->image)
        lines[i] = from_symbols(*batch.mapping->module->image, batch.addresses[i]);
      names[batch.in_memory[i]] = std::move(lines[i]);
    }
  }
  return names;
}

/// One printed line: a frame, or a function that is inlined into it.
struct Entry {
  const clew_frame* frame;
  symbolize::Line line;
  std::string module;
  bool inlined;
};

std::vector<Entry> entries_of(const Trace& trace, const Stacks& stacks,
                              const std::unordered_map<uint64_t, symbolize::Lines>& names) {
  std::vector<Entry> entries;
  for (const clew_frame& frame : trace.frames) {
    uint64_t address = code_address(frame);
    const process::Mapping* mapping = stacks.space.find(address);
    std::string module = mapping ? mapping->path : "";
    auto known = names.find(address);
    symbolize::Lines lines = known == names.end() ? symbolize::Lines{} : known->second;
    if (lines.empty()) lines.emplace_back();
    // The trampoline is named by nobody where a C library is stripped; gdb's words are known to all.
    if ((frame.flags & CLEW_FRAME_SIGNAL) && lines.back().function.empty())
      lines.back().function = "<signal handler called>";
    if (module == "[vsyscall]" && lines.back().function.empty()) lines.back().function = "[vsyscall]";
    for (size_t i = 0; i < lines.size(); ++i)
      entries.push_back({&frame, lines[i], module, i + 1 < lines.size()});
  }
  return entries;
}

// ---- Output ----

const char* end_words(clew_end end) {
  switch (end) {
    case CLEW_END_NO_RULE:
      return "nothing describes the code";
    case CLEW_END_NOT_MAPPED:
      return "the return address lies in no mapping";
    case CLEW_END_NOT_EXECUTABLE:
      return "the return address does not lie in code";
    case CLEW_END_UNREADABLE:
      return "stack memory cannot be read";
    case CLEW_END_NO_PROGRESS:
      return "the next frame would not lie closer to the root";
    case CLEW_END_DEPTH_LIMIT:
      return "there are more frames than are shown";
    case CLEW_END_NO_REGISTER:
      return "a rule needs a register that is not known";
    case CLEW_END_BAD_EXPRESSION:
      return "a DWARF expression cannot be evaluated";
    case CLEW_END_NOT_A_CALL:
      return "no call precedes the guessed return address";
    case CLEW_END_STACK_CHANGED:
      return "the stack changed while it was read";
    case CLEW_END_NO_USER_STACK:
      return "the thread's registers could not be had";
    default:
      return "";
  }
}

/// Of a stack deeper than both together the text leaves out the middle.
constexpr size_t kInnermost = 200;
constexpr size_t kOutermost = 56;

std::string as_text(const Stacks& stacks, const std::unordered_map<uint64_t, symbolize::Lines>& names) {
  std::string text = printable(stacks.title) + "\n";
  for (const Trace& trace : stacks.threads) {
    text += fmt::format("\nthread {}{}\n", trace.tid, trace.name.empty() ? "" : " " + printable(trace.name));
    const std::vector<Entry> entries = entries_of(trace, stacks, names);
    for (size_t number = 0; number < entries.size(); ++number) {
      if (number == kInnermost && entries.size() > kInnermost + kOutermost) {
        number = entries.size() - kOutermost;
        text += fmt::format("     ... {} frames, all of them with --json ...\n", number - kInnermost);
      }
      const Entry& entry = entries[number];
      text += fmt::format("#{:<3} 0x{:016x} {}", number, entry.frame->pc,
                          entry.line.function.empty() ? "??" : printable(entry.line.function));
      if (!entry.line.file.empty())
        text += fmt::format(" ({}:{})", printable(entry.line.file), entry.line.line);
      if (!entry.module.empty()) text += " in " + printable(entry.module);
      if (entry.inlined) text += " [inlined]";
      if (entry.frame->flags & CLEW_FRAME_GUESSED) text += " [guessed]";
      text += '\n';
    }
    if (trace.result.end != CLEW_END_ROOT)
      text += fmt::format("     ends: {}: {} (0x{:x})\n", clew_end_name(trace.result.end),
                          end_words(trace.result.end), trace.result.end_detail);
  }
  return text;
}

std::string as_json(const Stacks& stacks, const std::unordered_map<uint64_t, symbolize::Lines>& names) {
  std::string json = "{\"threads\":[";
  bool first_thread = true;
  for (const Trace& trace : stacks.threads) {
    json += fmt::format("{}\n {{\"tid\":{},\"name\":{},\"end\":\"{}\",\"frames\":[", first_thread ? "" : ",",
                        trace.tid, json_string(trace.name), clew_end_name(trace.result.end));
    first_thread = false;
    bool first = true;
    for (const Entry& entry : entries_of(trace, stacks, names)) {
      json += fmt::format(
          "{}\n  "
          "{{\"pc\":\"0x{:x}\",\"sp\":\"0x{:x}\",\"function\":{},\"file\":{},\"line\":{},\"inlined\":{},"
          "\"module\":{},"
          "\"how\":\"{}\",\"guessed\":{}}}",
          first ? "" : ",", entry.frame->pc, entry.frame->sp, json_string(entry.line.function),
          json_string(entry.line.file), entry.line.line, entry.inlined, json_string(entry.module),
          clew_how_name(entry.frame->how), (entry.frame->flags & CLEW_FRAME_GUESSED) != 0);
      first = false;
    }
    json += "]}";
  }
  return json + "\n]}\n";
}

}  // namespace

int stack(const StackOptions& options) {
  pid_t pid = 0;
  const char* end = options.target.data() + options.target.size();
  auto [parsed, error] = std::from_chars(options.target.data(), end, pid);
  bool digits =
      !options.target.empty() && options.target.find_first_not_of("0123456789") == std::string::npos;
  if (digits && (error != std::errc{} || pid <= 0))
    return fail(options.target + " is no PID: give one from ps, or a core file");
  bool numeric = digits && parsed == end;
  if (numeric && !options.executable.empty())
    return fail("EXE belongs to a core file: clew stack PID takes no more");
  Result<Stacks> stacks = numeric ? of_process(pid) : of_core(options.target, options.executable);
  if (!stacks) return fail(stacks.error());
  auto names = names_of(*stacks);
  std::string out = options.json ? as_json(*stacks, names) : as_text(*stacks, names);
  if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0)
    return fail("cannot write the stacks to standard output");
  return 0;
}

}  // namespace clew::cli
