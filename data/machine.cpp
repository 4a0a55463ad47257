#include "data/library.h"
