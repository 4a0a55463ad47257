// What a batch has finished, as a file that is only ever appended to: one record a line, on disk
// before the next plan begins. A record that was cut off, by a kill or a full disk, does not count.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

// The file cannot be opened, locked or written; names it.
class JournalError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Journal {
 public:
  // Opens or creates the file, behind links, and keeps every other process from writing to it.
  // Changes nothing in it: that it is a journal is for the caller to see.
  explicit Journal(const std::string& path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Records that were there already, without their line ends.
  const std::vector<std::string>& records() const { return records_; }
  const std::string& incomplete() const { return incomplete_; }  // what stands behind them

  // Returns when the record, which has no line ends, is on the disk. What is incomplete before it
  // is cut off.
  void append(const std::string& record);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void require_regular_file() const;
  void read_records();
  void take(std::string_view text);
  void cut_incomplete();

  std::string path_;
  int descriptor_ = -1;
  std::vector<std::string> records_;
  std::string incomplete_;
  std::int64_t complete_bytes_ = 0;  // before it
};

}  // namespace shardplan
