// Files that code runs from, each opened and compiled once, however many processes map it.
#include <linux/fs.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "process/address_space.hpp"

namespace clew::process {

namespace {

constexpr size_t kMaxFailures = 256;

std::string key_of(uint64_t device, uint64_t inode, uint64_t size, uint64_t mtime_ns) {
  return std::to_string(device) + ":" + std::to_string(inode) + ":" + std::to_string(size) + ":" +
         std::to_string(mtime_ns);
}

std::string key_of(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return "";
  return key_of(status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size),
                static_cast<uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                    static_cast<uint64_t>(status.st_mtim.tv_nsec));
}

/// The inode's generation, which differs where its number was given to a new file; 0 where it is not to be
/// had.
uint64_t generation_of(int fd) {
  unsigned long generation = 0;  // the call is declared with a long, filesystems store an int
  if (ioctl(fd, FS_IOC_GETVERSION, &generation) != 0) return 0;
  return generation & 0xffffffff;
}

bool another_generation(uint64_t a, uint64_t b) { return a != 0 && b != 0 && a != b; }

}  // namespace

uint64_t bias_of(const Mapping& mapping) {
  if (mapping.module == nullptr) return 0;
  const auto& image = mapping.module->image;
  const auto vaddr = image == nullptr ? std::nullopt : image->vaddr_of_offset(mapping.offset);
  return mapping.start - vaddr.value_or(mapping.offset);
}

void ModuleCache::note_failure(const std::string& line) {
  const bool room = failures_.size() < kMaxFailures || failures_.contains(line);
  ++failures_[room ? line : "other modules without a table"];
}

void ModuleCache::describe(Module& module, Result<elf::Image> image) {
  if (!image) {
    module.why_no_table = image.error();
    note_failure(module.why_no_table);
    return;
  }
  module.image = std::make_unique<elf::Image>(std::move(*image));
  module.build_id = module.image->build_id_hex();
  std::optional<elf::Image> debug;
#ifndef CLEW_WITHOUT_COMPRESSION  // libclew has no separate debug files
  // An image in memory may have lost its path to another file.
  if (module.image->fd() >= 0) debug = open_debug_frame(*module.image, module.path, module.root);
#endif
  if (auto table = table::load_or_compile(*module.image, nullptr, debug ? &*debug : nullptr)) {
    module.table = *table;
  } else {
    module.why_no_table = table.error();
    note_failure(module.why_no_table);
  }
  module.image->release_sections();
}

std::shared_ptr<Module> ModuleCache::without_image(const MapsEntry& entry, std::string why) {
  auto module = std::make_shared<Module>();
  module->path = entry.path;
  module->why_no_table = std::move(why);
  ++counts_.failed;
  note_failure(module->why_no_table);
  return module;
}

std::shared_ptr<Module> ModuleCache::known(const std::string& key, const MapsEntry& entry) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  if (another_generation(found->second->generation, entry.generation)) {
    return without_image(entry, entry.path + ": replaced by another file before it could be opened");
  }
  ++counts_.shared;
  return found->second;
}

std::shared_ptr<Module> ModuleCache::by_bytes(const std::string& name, std::vector<std::byte> bytes,
                                              const MapsEntry& entry) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string key = name + ":" + std::to_string(std::hash<std::string_view>{}(text));
  if (auto module = known(key, entry)) return module;
  auto module = std::make_shared<Module>();
  module->path = entry.path;
  describe(*module, elf::Image::from_bytes(std::move(bytes), name));
  ++counts_.opened;
  by_key_.emplace(key, module);
  return module;
}

std::shared_ptr<Module> ModuleCache::vdso(pid_t pid, const MapsEntry& entry) {
  // Equal bytes are one module: by one read a process, where it can be read.
  constexpr uint64_t kMaxBytes = 1 << 20;
  std::vector<std::byte> bytes(std::min(entry.end - entry.start, kMaxBytes));
  size_t got = read_memory(pid, entry.start, bytes);
  if (got == 0) got = read_memory(getpid(), getauxval(AT_SYSINFO_EHDR), bytes);
  bytes.resize(got);
  return by_bytes(entry.path, std::move(bytes), entry);
}

Result<std::shared_ptr<Module>> ModuleCache::for_bytes(std::vector<std::byte> bytes) {
  auto module = by_bytes("ELF file in memory", std::move(bytes), {});
  if (!module->table) return Error{module->why_no_table};
  return module;
}

Result<std::shared_ptr<Module>> ModuleCache::for_file(const std::string& path) {
  auto image = elf::Image::open(path);
  if (!image) return Error{image.error()};
  const std::string key = key_of(image->fd());
  auto module = known(key, {});
  if (!module) {
    module = std::make_shared<Module>();
    module->path = path;
    module->generation = generation_of(image->fd());
    describe(*module, std::move(image));
    ++counts_.opened;
    by_key_.emplace(key, module);
  }
  if (!module->table) return Error{module->why_no_table};
  return module;
}

std::shared_ptr<Module> ModuleCache::from_memory(pid_t pid, std::span<const MapsEntry> maps,
                                                 const MapsEntry& entry, const std::string& why_not_file) {
  std::vector<MapsEntry> own;
  if (maps.empty()) {
    if (auto read = read_maps(pid)) own = std::move(*read);
    maps = own;
  }
  auto image = image_from_memory(pid, maps, entry);
  if (!image) return without_image(entry, why_not_file);
  // Several executable mappings and several processes share it where a build-id tells that it is the same.
  const std::string build_id = image->build_id_hex();
  const std::string key = "memory:" + std::to_string(entry.device_major) + ":" +
                          std::to_string(entry.device_minor) + ":" + std::to_string(entry.inode) + ":" +
                          build_id;
  if (!build_id.empty()) {
    if (auto module = known(key, entry)) return module;
  }
  auto module = std::make_shared<Module>();
  module->path = entry.path;
  module->generation = entry.generation;
  describe(*module, std::move(image));
  (void)module->image->symbols();  // the process may be gone when they are asked for
  module->image->release_sections();
  ++counts_.from_memory;
  if (!build_id.empty()) by_key_.emplace(key, module);
  return module;
}

std::shared_ptr<Module> ModuleCache::for_mapping(pid_t pid, std::span<const MapsEntry> maps,
                                                 const MapsEntry& entry) {
  if (entry.path == "[vdso]") return vdso(pid, entry);
  if (!is_file_mapping(entry)) return nullptr;
  const auto file = locate_mapped_file(pid, entry);
  if (file) {
    if (auto module = known(key_of(file->device, file->inode, file->size, file->mtime_ns), entry))
      return module;
  }
  auto fd = open_mapped_file(pid, entry);
  if (!fd) return from_memory(pid, maps, entry, fd.error());
  // By the descriptor: the file may have been reached in another way, or may have changed since the stat.
  const std::string key = key_of(fd->get());
  if (auto module = known(key, entry)) return module;
  auto module = std::make_shared<Module>();
  module->path = entry.path;
  module->generation = generation_of(fd->get());
  if (another_generation(module->generation, entry.generation)) {
    return without_image(entry, entry.path + ": replaced by another file before it could be opened");
  }
  if (file) module->root = file->root;
  describe(*module, elf::Image::from_fd(fd->get(), entry.path));
  ++counts_.opened;
  by_key_.emplace(key, module);
  return module;
}

Mapping mapping_from_maps(pid_t pid, std::span<const MapsEntry> maps, const MapsEntry& entry,
                          ModuleCache& modules) {
  Mapping mapping;
  mapping.start = entry.start;
  mapping.end = entry.end;
  mapping.offset = entry.offset;
  mapping.executable = entry.executable;
  mapping.path = entry.path;
  if (entry.executable) mapping.module = modules.for_mapping(pid, maps, entry);
  mapping.bias = bias_of(mapping);
  return mapping;
}

Mapping mapping_from_event(pid_t pid, uint64_t start, uint64_t length, uint64_t offset, uint32_t device_major,
                           uint32_t device_minor, uint64_t inode, uint64_t inode_generation,
                           uint32_t protection, std::string_view path, ModuleCache& modules) {
  constexpr std::string_view kDeleted = " (deleted)";
  MapsEntry entry;
  entry.start = start;
  entry.end = length > UINT64_MAX - start ? UINT64_MAX : start + length;
  entry.offset = offset;
  entry.device_major = device_major;
  entry.device_minor = device_minor;
  entry.inode = inode;
  entry.generation = inode_generation;
  entry.readable = (protection & PROT_READ) != 0;
  entry.writable = (protection & PROT_WRITE) != 0;
  entry.executable = (protection & PROT_EXEC) != 0;
  if (path.starts_with('/') && path.ends_with(kDeleted)) {
    entry.deleted = true;
    path.remove_suffix(kDeleted.size());
  }
  entry.path = path;
  return mapping_from_maps(pid, {}, entry, modules);
}

}  // namespace clew::process
