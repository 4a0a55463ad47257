#include "validator/supervise/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace shardplan {
namespace {

constexpr std::int64_t kMaxRecordBytes = std::int64_t{64} << 20;

// The name of a new file is on the disk only when its folder is.
void sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    fsync(descriptor);
    close(descriptor);
  }
}

}  // namespace

void Journal::fail(const std::string& what) const {
  throw JournalError(path_ + ": " + what + ": " + std::strerror(errno));
}

Journal::Journal(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    fail("cannot be opened");
  }
  try {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      fail("cannot be locked; another process writes to it");
    }
    require_regular_file();
    read_records();
  } catch (...) {
    close(descriptor_);
    throw;
  }
  std::error_code ignored;
  sync_folder_of(std::filesystem::canonical(path, ignored).string());
}

Journal::~Journal() {
  close(descriptor_);
}

void Journal::require_regular_file() const {
  struct stat file = {};
  if (fstat(descriptor_, &file) != 0) {
    fail("cannot be read");
  }
  if (!S_ISREG(file.st_mode)) {
    throw JournalError(path_ + ": is no regular file");
  }
}

void Journal::read_records() {
  std::array<char, 1 << 16> bytes{};
  for (;;) {
    const ssize_t count = read(descriptor_, bytes.data(), bytes.size());
    if (count < 0) {
      fail("cannot be read");
    }
    if (count == 0) {
      return;
    }
    take(std::string_view(bytes.data(), static_cast<std::size_t>(count)));
  }
}

void Journal::take(std::string_view text) {
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    incomplete_.append(text.substr(0, end));
    complete_bytes_ += std::ssize(incomplete_) + 1;
    records_.push_back(std::move(incomplete_));
    incomplete_.clear();
    text.remove_prefix(end + 1);
  }
  incomplete_.append(text);
  if (std::ssize(incomplete_) > kMaxRecordBytes) {
    throw JournalError(path_ + ": found a line of more than " + std::to_string(kMaxRecordBytes) +
                       " bytes, expected records of a journal");
  }
}

void Journal::cut_incomplete() {
  if (!incomplete_.empty() && ftruncate(descriptor_, complete_bytes_) != 0) {
    fail("its incomplete last line cannot be cut off");
  }
  incomplete_.clear();
}

void Journal::append(const std::string& record) {
  if (record.find('\n') != std::string::npos) {
    throw std::logic_error("journal: a record of several lines");
  }
  cut_incomplete();
  const std::string line = record + "\n";
  // The lock keeps lines of other processes from coming between.
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail("cannot be written");
    }
  }
  if (fdatasync(descriptor_) != 0) {
    fail("cannot be written to the disk");
  }
}

}  // namespace shardplan
