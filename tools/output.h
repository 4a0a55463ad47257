// Where answers go: standard output, or a file that appears complete or not at all.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardplan {

// The surroundings fail, not the question: exit code 3. what() is the whole line.
struct EnvironmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes to standard output, or to a temporary file beside `path` that commit() renames to it.
// Where that is a symbolic link, what it leads to is replaced and the link stays. The temporary is
// removed by the destructor and by SIGINT, SIGTERM and SIGHUP. All failures to write are
// EnvironmentErrors.
class Output {
 public:
  explicit Output(const std::string& path);  // "" or "-": standard output
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view text);
  // The reader of the pipe has gone, as in `| head`: nothing more will be read. Not an error.
  bool abandoned() const { return abandoned_; }
  bool is_terminal() const;
  // The file takes its name. Without it, no file appears.
  void commit();

 private:
  void open_temporary();
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;       // empty: standard output
  std::string target_;     // path_ behind links
  std::string temporary_;  // empty: none to remove
  int descriptor_ = 1;
  bool abandoned_ = false;
};

// Whether two Outputs would write to one place, by whatever paths.
bool is_same_output(const std::string& one, const std::string& other);

// Whether both are one file that is there, by whatever paths, links or names.
bool is_same_file(const std::string& one, const std::string& other);

// One line to standard error, "shardplan: <message>", with control characters escaped.
void print_message(std::string_view message);

}  // namespace shardplan
