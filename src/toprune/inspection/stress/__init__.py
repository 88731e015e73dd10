"""Does benign filler push the decisive tokens out?"""
