#include "tools/report/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>

#include "tools/report/text.h"
#include "tools/validate/stop_signals.h"

namespace shardplan {
namespace {

// The temporaries that a signal must remove. Signal handlers reach nothing but statics.
constexpr std::size_t kMaxPath = 4096;
struct PendingFile {
  std::array<char, kMaxPath> path = {};
  volatile std::sig_atomic_t is_there = 0;
};
std::array<PendingFile, 4> pending_files;  // more than any command writes at once

extern "C" void remove_pending(int signal_number) {
  for (const PendingFile& file : pending_files) {
    if (file.is_there != 0) {
      unlink(file.path.data());
    }
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void note_pending(const std::string& temporary) {
  const auto free = std::ranges::find(pending_files, 0, &PendingFile::is_there);
  if (free == pending_files.end()) {
    throw std::logic_error("output: more files at once than signals remove");
  }
  std::copy(temporary.begin(), temporary.end(), free->path.begin());
  free->path[temporary.size()] = '\0';
  free->is_there = 1;
}

// Removed, or no temporary any more.
void forget(const std::string& temporary) {
  for (PendingFile& file : pending_files) {
    if (temporary == file.path.data()) {
      file.is_there = 0;
    }
  }
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

// make(name) with names beside `target`, so that a rename stays inside one file system, until one
// is free; what a killed run has left is in nobody's way. "" where there is none: errno says why.
template <class Make>
std::string unused_name(const std::string& target, const Make& make) {
  constexpr std::size_t kMaxStart = 200;  // of the 255 bytes that a file's name may have
  constexpr int kMostTries = 100;
  const std::size_t folder_size = target.rfind('/') + 1;  // 0: none
  const std::string start = target.substr(0, folder_size + kMaxStart) + ".tmp.";
  std::random_device random;
  errno = EEXIST;
  for (int i = 0; i < kMostTries && errno == EEXIST; ++i) {
    std::string name = start + std::to_string(random());
    if (name.size() >= kMaxPath) {
      errno = ENAMETOOLONG;
    } else if (make(name)) {
      return name;
    }
  }
  return "";
}

std::string descriptor_path(int descriptor) {
  return "/proc/self/fd/" + std::to_string(descriptor);
}

// A file that has no name yet, so that nothing is left of it however the process ends. -1 where the
// file system has none such, or without /proc, by which it gets its name.
int open_nameless(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (descriptor >= 0 && access(descriptor_path(descriptor).c_str(), F_OK) != 0) {
    close(descriptor);
    return -1;
  }
  return descriptor;
}

bool give_name(int descriptor, const std::string& name) {
  return linkat(AT_FDCWD, descriptor_path(descriptor).c_str(), AT_FDCWD, name.c_str(),
                AT_SYMLINK_FOLLOW) == 0;
}

// Where the links lead that the path may be; no file needs to be there.
std::string behind_links(std::string path) {
  constexpr int kMostLinks = 40;  // of the kernel
  std::error_code failed;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, failed); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, failed);
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
}

// The one name of a file; "" of standard output.
std::string full_path(const std::string& path) {
  if (path.empty() || path == "-") {
    return "";
  }
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(behind_links(path), failed);
  return std::filesystem::weakly_canonical(absolute, failed).string();
}

}  // namespace

bool is_same_output(const std::string& one, const std::string& other) {
  return full_path(one) == full_path(other);
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code failed;
  return std::filesystem::is_regular_file(one, failed) &&
         std::filesystem::equivalent(one, other, failed);
}

Output::Output(const std::string& path) : path_(path == "-" ? "" : path) {
  if (!path_.empty()) {
    open_temporary();
  }
}

Output::~Output() {
  if (!path_.empty() && descriptor_ >= 0) {
    close(descriptor_);
  }
  if (!temporary_.empty()) {
    unlink(temporary_.c_str());
    forget(temporary_);
  }
}

void Output::fail(const std::string& what) const {
  throw EnvironmentError((path_.empty() ? "standard output" : path_) + ": " + what);
}

void Output::open_temporary() {
  struct stat existing = {};
  const bool exists = stat(path_.c_str(), &existing) == 0;
  if (exists && !S_ISREG(existing.st_mode)) {
    fail("exists and is not a regular file");
  }
  if (!exists && errno != ENOENT) {
    fail(std::string("cannot create: ") + std::strerror(errno));
  }
  target_ = behind_links(path_);
  watch_end_signals(remove_pending);
  descriptor_ = open_nameless(folder_of(target_));
  is_nameless_ = descriptor_ >= 0;
  if (!is_nameless_) {
    temporary_ = unused_name(target_, [&](const std::string& name) {
      constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
      descriptor_ = open(name.c_str(), kNew, 0666);
      return descriptor_ >= 0;
    });
    if (descriptor_ < 0) {
      fail(std::string("cannot create: ") + std::strerror(errno));
    }
    note_pending(temporary_);
  }
  if (exists && fchmod(descriptor_, existing.st_mode & 07777) != 0) {
    fail(std::string("cannot set its permissions: ") + std::strerror(errno));
  }
}

void Output::write(std::string_view text) {
  while (!text.empty() && !abandoned_) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      abandoned_ = true;
    } else if (errno != EINTR) {
      fail(std::string("cannot write: ") + std::strerror(errno));
    }
  }
}

bool Output::is_terminal() const {
  return path_.empty() && isatty(descriptor_) != 0;
}

void Output::commit() {
  if (path_.empty()) {
    return;
  }
  if (fsync(descriptor_) != 0 && errno != EINVAL) {  // EINVAL: not supported there
    fail(std::string("cannot write: ") + std::strerror(errno));
  }
  if (is_nameless_) {
    take_name();
  }
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) {
    fail(std::string("cannot write: ") + std::strerror(errno));
  }
  if (!temporary_.empty()) {
    if (rename(temporary_.c_str(), target_.c_str()) != 0) {
      fail(std::string("cannot rename to it: ") + std::strerror(errno));
    }
    forget(temporary_);
    temporary_.clear();
  }
  // The name itself lives in the folder. Where folders cannot be synced, the file is still whole.
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

// The target's, unless there is a file already: a rename replaces that, and needs another name
// first.
void Output::take_name() {
  if (give_name(descriptor_, target_)) {
    return;
  }
  if (errno == EEXIST) {
    temporary_ =
        unused_name(target_, [&](const std::string& name) { return give_name(descriptor_, name); });
  }
  if (temporary_.empty()) {
    fail(std::string("cannot take its name: ") + std::strerror(errno));
  }
  note_pending(temporary_);
}

void ignore_write_signals() {
  for (const int number : {SIGPIPE, SIGXFSZ}) { std::signal(number, SIG_IGN); }
}

namespace {

void write_error_line(const std::string& line) {
  // A message that cannot be shown has nowhere else to go.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool has_coloured_errors() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

// `code`: of a colour of a terminal.
std::string in_colour(const std::string& word, const char* code) {
  return has_coloured_errors() ? "\x1b[" + std::string(code) + "m" + word + "\x1b[0m" : word;
}

}  // namespace

void print_message(std::string_view message) {
  write_error_line("shardplan: " + one_line(message) + "\n");
}

void print_error(std::string_view message, std::string_view hint) {
  write_error_line("shardplan: " + in_colour("error:", "1;31") + " " + one_line(message) + "\n");
  if (!hint.empty()) {
    print_hint(hint);
  }
}

void print_hint(std::string_view hint) {
  write_error_line(in_colour("hint:", "1;36") + " " + one_line(hint) + "\n");
}

}  // namespace shardplan
