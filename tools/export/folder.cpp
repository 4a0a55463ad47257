#include "tools/export/folder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "data/read/input_error.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

void require(const std::error_code& problem, const std::string& path) {
  if (problem) {
    throw EnvironmentError("--export: cannot write '" + path + "': " + problem.message());
  }
}

}  // namespace

StagedFolder::StagedFolder(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.ends_with('/')) { path_.pop_back(); }
  std::error_code problem;
  if (fs::exists(path_, problem) && (!fs::is_directory(path_, problem) || !fs::is_empty(path_))) {
    throw InputError("--export: found '" + path +
                     "', which is not an empty folder, expected one that is, or a name that is "
                     "not there yet");
  }
  staged_ = path_ + ".tmp." + std::to_string(getpid());
  fs::create_directories(staged_, problem);
  require(problem, path_);
}

StagedFolder::~StagedFolder() {
  if (!staged_.empty()) {
    std::error_code ignored;
    fs::remove_all(staged_, ignored);
  }
}

void StagedFolder::write(const ExportedFile& file) {
  const fs::path path = fs::path(staged_) / file.name;
  std::error_code problem;
  fs::create_directories(path.parent_path(), problem);
  require(problem, path_);
  std::ofstream stream(path, std::ios::binary);
  stream << file.text;
  stream.close();
  if (!stream) {
    throw EnvironmentError("--export: cannot write '" + path_ + "/" + file.name + "'");
  }
  if (file.is_program) {
    fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                    fs::perm_options::add, problem);
    require(problem, path_);
  }
}

void StagedFolder::commit() {
  std::error_code problem;
  fs::rename(staged_, path_, problem);  // onto an empty folder, too
  require(problem, path_);
  staged_.clear();
}

}  // namespace shardplan
