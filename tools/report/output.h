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

// Writes to standard output, or to a file in the folder of `path` that has no name until commit()
// gives it that one: nothing is left of it however the process ends. Where the file system has no
// such files it has a name of its own, OUT.tmp.NUMBER, which the destructor and SIGINT, SIGTERM and
// SIGHUP remove. Where `path` is a symbolic link, what it leads to is replaced and the link stays.
// All failures to write are EnvironmentErrors.
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
  void take_name();
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;       // empty: standard output
  std::string target_;     // path_ behind links
  std::string temporary_;  // empty: none to remove
  int descriptor_ = 1;
  bool is_nameless_ = false;
  bool abandoned_ = false;
};

// A closed pipe and a file at its size limit are seen where they are written to; no signal ends the
// program.
void ignore_write_signals();

// Whether two Outputs would write to one place, by whatever paths.
bool is_same_output(const std::string& one, const std::string& other);

// Whether both are one file that is there, by whatever paths, links or names.
bool is_same_file(const std::string& one, const std::string& other);

// One line to standard error, "shardplan: <message>", with control characters escaped.
void print_message(std::string_view message);

// "shardplan: error: <message>", and where there is one a second line, "hint: <hint>". The first
// word is coloured on a terminal, unless NO_COLOR is set.
void print_error(std::string_view message, std::string_view hint = "");
void print_hint(std::string_view hint);

}  // namespace shardplan
