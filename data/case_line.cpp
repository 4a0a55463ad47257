#include "data/case_line.h"
