// Text files that a user names, whole or line by line. What cannot be read, up to its end, is an
// InputError that names the file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "data/read/input_error.h"

namespace shardplan {

class TextFile {
 public:
  // `where` opens messages: "cases.jsonl:3: /model: ".
  explicit TextFile(const std::string& path, const std::string& where = "");
  // "-" is standard input.
  static TextFile or_standard_input(const std::string& path);

  // As messages name it.
  const std::string& name() const { return name_; }
  // The next line without its end; false behind the last. Of a line longer than kMaxJsonBytes,
  // which no reader accepts, only the start is kept.
  bool next_line(std::string& line);
  // What is left; InputError where that is more than kMaxJsonBytes.
  std::string rest();

 private:
  using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  TextFile(std::string name, Stream stream);
  void require_read() const;

  std::string name_;
  Stream stream_;
};

// The whole file.
std::string read_text_file(const std::string& path, const std::string& where = "");

}  // namespace shardplan
