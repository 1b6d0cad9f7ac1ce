// `fuzz_NAME --write-seeds FOLDER`: the target's own seeds as files, instead of a run.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--write-seeds") != 0) return 0;
  const std::filesystem::path folder = (*argv)[2];
  std::filesystem::create_directories(folder);
  size_t number = 0;
  for (const moontide::Bytes& seed : moontide::fuzz::seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) return std::exit(1), 1;
  }
  std::exit(0);
}
