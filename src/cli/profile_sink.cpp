#include "cli/profile_sink.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "process/process.hpp"

namespace clew::cli {

namespace {

constexpr size_t kMostWaiting = 1 << 20;  // samples; far more than any machine takes between two pieces
constexpr auto kWriteEvery = std::chrono::milliseconds(200);

/// The name of the symbol that holds `address`, "" where none does.
template <class Symbols>
std::string symbol_at(const Symbols& symbols, uint64_t address) {
  auto after =
      std::ranges::upper_bound(symbols, address, {}, [](const auto& symbol) { return symbol.address; });
  if (after == symbols.begin()) return {};
  --after;
  return after->size == 0 || address - after->address < after->size ? after->name : std::string();
}

/// The file and line that hold at `address`; empty where none does.
symbolize::Line line_at(const std::vector<collect::bpf::Function::Line>& lines, uint64_t address) {
  const auto after = std::ranges::upper_bound(lines, address, {}, &collect::bpf::Function::Line::address);
  if (after == lines.begin()) return {};
  return {
      .function = {}, .file = symbolize::sanitize(std::prev(after)->file), .line = std::prev(after)->line};
}

/// Where to look an address up: a return address lies behind its call.
uint64_t lookup_address(const profile::Place& place) {
  return (place.flags & CLEW_FRAME_EXACT_PC) != 0 || place.address == 0 ? place.address : place.address - 1;
}

}  // namespace

ProfileSink::~ProfileSink() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint32_t ProfileSink::source_of(const process::Mapping& mapping) {
  if (mapping.module == nullptr && mapping.path.empty()) return 0;
  uint32_t& index = mapping.module ? by_module_[mapping.module.get()] : by_path_[mapping.path];
  if (index != 0) return index;
  index = ++source_count_;
  auto source = std::make_unique<Source>();
  // As the file gives its addresses, so that a module is one mapping of the profile wherever a process put
  // it.
  source->mapping = {.start = mapping.start - mapping.bias,
                     .end = mapping.end - mapping.bias,
                     .offset = mapping.offset,
                     .path = mapping.path,
                     .build_id = {}};
  if (mapping.module) {
    process::Module& module = *mapping.module;
    source->module = mapping.module;
    source->mapping.build_id = module.build_id;
    source->file.build_id = module.build_id;
    if (!module.path.empty()) source->mapping.path = module.path;
    const std::string& path = source->mapping.path;
    source->file.name = path.substr(path.rfind('/') + 1);
    if (module.image) {
      if (module.image->fd() >= 0) {
        source->file.path = "/proc/self/fd/" + std::to_string(module.image->fd());
        source->file.debug_path =
            process::find_debug_file(*module.image, module.path, module.root).value_or("");
      } else {
        for (const elf::Symbol& symbol : module.image->symbols()) {
          source->symbols.push_back({symbol.address, symbol.size, std::string(symbol.name)});
        }
      }
    }
  }
  batch_.sources.push_back(std::move(source));
  return index;
}

uint32_t ProfileSink::source_of(const collect::bpf::Function& function) {
  uint32_t& index = by_function_[&function];
  if (index != 0) return index;
  index = ++source_count_;
  const std::string& program = function.program.empty() ? function.name : function.program;
  auto source = std::make_unique<Source>();
  source->mapping = {.start = function.start,
                     .end = function.end,
                     .offset = 0,
                     .path = symbolize::sanitize("[bpf:" + program + "]"),
                     .build_id = function.tag};
  const std::string owner = function.program.empty() ? " [bpf]" : " [bpf:" + function.program + "]";
  source->symbols.push_back(
      {function.start, function.end - function.start, symbolize::sanitize(function.name + owner)});
  source->lines = function.lines;
  batch_.sources.push_back(std::move(source));
  return index;
}

void ProfileSink::add(const collect::Trace& trace) {
  const std::lock_guard lock(mutex_);
  if (batch_.samples.size() >= kMostWaiting) {
    ++dropped_;
    return;
  }
  const size_t first = batch_.places.size();
  for (const collect::TraceFrame& frame : trace.frames) {
    profile::Place place;
    place.address = frame.frame.pc;
    place.how = static_cast<uint8_t>(frame.frame.how);
    place.flags = static_cast<uint8_t>(frame.frame.flags);
    if (frame.frame.how == CLEW_HOW_KERNEL) {
      place.kind = frame.bpf_function != nullptr ? profile::FrameKind::kBpf : profile::FrameKind::kKernel;
      if (frame.bpf_function != nullptr) place.mapping = source_of(*frame.bpf_function);
    } else if (frame.mapping != nullptr) {
      place.mapping = source_of(*frame.mapping);
      if (place.mapping != 0) place.address -= frame.mapping->bias;
    }
    batch_.places.push_back(place);
  }
  batch_.samples.push_back({.first_place = first,
                            .places = trace.frames.size(),
                            .first_comm = batch_.comms.size(),
                            .comm_size = trace.comm.size(),
                            .pid = trace.pid,
                            .tid = trace.tid,
                            .time_ns = trace.time_ns,
                            .weight_ns = trace.weight_ns,
                            .end = trace.end,
                            .blocked = trace.blocked});
  batch_.comms += trace.comm;
}

Result<bool> ProfileSink::open(const std::string& path, uint64_t period_ns) {
  auto writer = profile::Writer::create(
      path, period_ns, [this](std::span<const profile::Place> places) { return symbolize(places); });
  if (!writer) return Error{writer.error()};
  writer_ = std::move(*writer);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "clew-write");
  return true;
}

void ProfileSink::run() {
  for (bool last = false; !last;) {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kWriteEvery, [this] { return ending_; });
      last = ending_;
      std::swap(batch, batch_);
    }
    write(batch);
    if (last) return;
    if (auto flushed = writer_->flush(); !flushed && failed_.empty()) failed_ = flushed.error();
  }
}

void ProfileSink::write(Batch& batch) {
  for (std::unique_ptr<Source>& source : batch.sources) {
    const uint32_t mapping = writer_->mapping(source->mapping);
    writer_mappings_.push_back(mapping);
    source_of_mapping_.try_emplace(mapping, sources_.size());
    sources_.push_back(std::move(source));
  }
  for (profile::Place& place : batch.places) {
    if (place.mapping != 0) place.mapping = writer_mappings_[place.mapping - 1];
  }
  const std::span places(batch.places);
  for (const Queued& queued : batch.samples) {
    writer_->sample({.stack = writer_->stack(places.subspan(queued.first_place, queued.places)),
                     .pid = queued.pid,
                     .tid = queued.tid,
                     .comm = std::string_view(batch.comms).substr(queued.first_comm, queued.comm_size),
                     .time_ns = queued.time_ns,
                     .weight_ns = queued.weight_ns,
                     .end = queued.end,
                     .blocked = queued.blocked});
  }
}

std::vector<symbolize::Lines> ProfileSink::symbolize(std::span<const profile::Place> places) {
  std::vector<symbolize::Lines> lines(places.size());
  std::map<uint32_t, std::vector<size_t>> by_mapping;
  // Modules and BPF programs may be new.
  if (std::ranges::any_of(places, [this](const profile::Place& place) {
        return place.kind == profile::FrameKind::kKernel && !kernel_.is_permanent(place.address);
      })) {
    kernel_ = symbolize::KernelSymbols::load();
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const profile::Place& place = places[i];
    if (place.kind == profile::FrameKind::kKernel) {
      const std::string name = kernel_.name(lookup_address(place));
      if (!name.empty()) lines[i].push_back({.function = name, .file = {}, .line = 0});
    } else if (place.mapping != 0) {
      by_mapping[place.mapping].push_back(i);
    }
  }
  files_left_.store(by_mapping.size(), std::memory_order_relaxed);
  for (const auto& [mapping, indices] : by_mapping) {
    const auto found = source_of_mapping_.find(mapping);
    if (found != source_of_mapping_.end()) {
      const Source& source = *sources_[found->second];
      if (!source.file.path.empty()) {
        std::vector<uint64_t> addresses;
        addresses.reserve(indices.size());
        for (const size_t i : indices) addresses.push_back(lookup_address(places[i]));
        std::vector<symbolize::Lines> answers = symbolizer_.symbolize(source.file, addresses);
        for (size_t k = 0; k < std::min(answers.size(), indices.size()); ++k)
          lines[indices[k]] = std::move(answers[k]);
      } else {
        for (const size_t i : indices) {
          const uint64_t address = lookup_address(places[i]);
          const std::string name = symbol_at(source.symbols, address);
          if (name.empty()) continue;
          if (places[i].kind == profile::FrameKind::kBpf) {
            lines[i].push_back(line_at(source.lines, address));
            lines[i].back().function = name;
          } else {
            lines[i].push_back({.function = symbolize::demangle(name), .file = {}, .line = 0});
          }
        }
      }
    }
    files_left_.fetch_sub(1, std::memory_order_relaxed);
  }
  return lines;
}

Result<uint64_t> ProfileSink::finish(const profile::Totals& totals) {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!writer_) return Error{"the profile was not opened"};
  auto size = writer_->finish(totals);
  if (!failed_.empty()) return Error{failed_};
  return size;
}

}  // namespace clew::cli
