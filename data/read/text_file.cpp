#include "data/read/text_file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "data/read/json_reader.h"

namespace shardplan {
namespace {

std::FILE* opened(const std::string& path, const std::string& name) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    throw InputError(name + ": found a directory, expected a file");
  }
  if (std::filesystem::is_character_file(path, failed)) {  // /dev/zero has no end
    throw InputError(name + ": found a device, expected a file");
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    throw InputError(name + ": found no readable file, expected one: " + std::strerror(errno));
  }
  return file;
}

int keep_open(std::FILE* /*stream*/) {
  return 0;
}

}  // namespace

TextFile::TextFile(std::string name, Stream stream)
    : name_(std::move(name)), stream_(std::move(stream)) {
  constexpr int kGzip = 0x1f;  // no text begins so
  const int first = std::getc(stream_.get());
  if (first == kGzip) {
    throw InputError(name_ +
                     ": found a file compressed by gzip, expected its text: unpack it, or pipe a "
                     "log or case lines, zcat FILE | shardplan ... -");
  }
  std::ungetc(first, stream_.get());
}

TextFile::TextFile(const std::string& path, const std::string& where)
    : TextFile(where + path, Stream(opened(path, where + path), std::fclose)) {}

TextFile TextFile::or_standard_input(const std::string& path) {
  return path == "-" ? TextFile("standard input", Stream(stdin, keep_open)) : TextFile(path);
}

void TextFile::require_read() const {
  if (std::ferror(stream_.get()) != 0) {
    throw InputError(name_ + ": cannot be read: " + std::strerror(errno));
  }
}

bool TextFile::next_line(std::string& line) {
  line.clear();
  int letter = std::getc(stream_.get());
  const bool is_there = letter != EOF;
  for (; letter != EOF && letter != '\n'; letter = std::getc(stream_.get())) {
    if (static_cast<std::int64_t>(line.size()) <= kMaxJsonBytes) {
      line += static_cast<char>(letter);
    }
  }
  require_read();
  return is_there;
}

std::string TextFile::rest() {
  // In pieces: a pipe has no size to ask for.
  std::string text;
  std::array<char, 1 << 16> piece{};
  for (std::size_t count = piece.size(); count == piece.size();) {
    count = std::fread(piece.data(), 1, piece.size(), stream_.get());
    text.append(piece.data(), count);
    if (static_cast<std::int64_t>(text.size()) > kMaxJsonBytes) {
      throw InputError(name_ + ": found more than " + std::to_string(kMaxJsonBytes) +
                       " bytes, expected a smaller file");
    }
  }
  require_read();
  return text;
}

std::string read_text_file(const std::string& path, const std::string& where) {
  return TextFile(path, where).rest();
}

}  // namespace shardplan
