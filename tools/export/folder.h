// A folder of files that appears complete or not at all.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// Writes to a folder beside the one that is meant, which takes its name at the end; until then, and
// where something fails, it is removed. EnvironmentErrors for what cannot be written.
class StagedFolder {
 public:
  // InputError where `path` is there and is not an empty folder: nobody's files are replaced.
  explicit StagedFolder(const std::string& path);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  void write(const ExportedFile& file);
  const std::string& path() const { return staged_; }  // where the files lie until commit()
  void commit();

 private:
  std::string path_;
  std::string staged_;
};

}  // namespace shardplan
