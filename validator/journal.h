// What a batch has finished, as a file that is only ever appended to: one record a line, on disk
// before the next plan begins. A record that was cut off, by a kill or a full disk, does not count.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardplan {

// The file cannot be opened, locked or written; names it.
class JournalError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Journal {
 public:
  // Opens or creates the file and keeps every other process from writing to it. An incomplete last
  // line is cut off.
  explicit Journal(const std::string& path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Records that were there already, without their line ends.
  const std::vector<std::string>& records() const { return records_; }
  std::int64_t bytes_cut() const { return bytes_cut_; }

  // Returns when the record, which has no line ends, is on the disk.
  void append(const std::string& record);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void read_records();

  std::string path_;
  int descriptor_ = -1;
  std::vector<std::string> records_;
  std::int64_t bytes_cut_ = 0;
};

}  // namespace shardplan
