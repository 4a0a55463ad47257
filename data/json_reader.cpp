#include "data/json_reader.h"
