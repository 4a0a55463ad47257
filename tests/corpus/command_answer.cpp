// The answer of a command of the program, asked in a process of its own.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "data/read/text_file.h"
#include "tests/corpus/answers.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/run_main.h"

namespace shardplan {
namespace {

constexpr const char* kWritten = "written";  // the folder for what commands write

ExitCode run_command(Arguments words) {
  const std::string name = words.front();
  words.erase(words.begin());
  return command_named(name).run(words);
}

void write_into(const char* path, int descriptor) {
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, descriptor) < 0) {
    _exit(120);
  }
}

// In the child: never returns.
void run_and_exit(std::vector<std::string> words) {
  words.insert(words.begin(), "shardplan");
  std::vector<char*> pointers;
  pointers.reserve(words.size());
  for (std::string& word : words) { pointers.push_back(word.data()); }
  write_into("out", STDOUT_FILENO);
  write_into("err", STDERR_FILENO);
  const int code = run_main(static_cast<int>(pointers.size()), pointers.data(), run_command);
  std::fflush(nullptr);
  _exit(code);
}

int status_of(const std::vector<std::string>& words) {
  const pid_t child = fork();
  if (child == 0) {
    run_and_exit(words);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    throw std::runtime_error("cannot run a command");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string taken(const std::filesystem::path& file) {
  std::string text = "--- " + file.string() + "\n" + read_text_file(file.string());
  std::filesystem::remove(file);
  return text;
}

}  // namespace

void answer_command(const std::string& line, const TakeAnswer& take) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) { words.push_back(word); }
  std::filesystem::create_directory(kWritten);
  std::string text = "exit " + std::to_string(status_of(words)) + "\n";
  text += taken("out");
  text += taken("err");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kWritten)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) { text += taken(file); }
  take("", text);
}

}  // namespace shardplan
